"""This package executes batches of thread blocks: which threads run next, wait, and come together again."""
