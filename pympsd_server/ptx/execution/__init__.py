"""Batches of thread blocks: which threads run next, how they wait, and how they come together again."""
