"""What REFERENCE and CANDIDATE can be, a file a kind, behind ``base.Source``. Targets bring their own beside these."""
