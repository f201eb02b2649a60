"""A report as data: its schema, the metrics in it, and (``render``) every format it is shown in."""
