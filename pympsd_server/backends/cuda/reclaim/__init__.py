"""What is freed later: when no work can use it any more."""
