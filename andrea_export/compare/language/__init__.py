"""What errors do to the language model: the same text through both, and what they predict. Judges nothing."""
