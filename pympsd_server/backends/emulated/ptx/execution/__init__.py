"""Batches of thread blocks: which threads run next, where they wait, and how they come together again."""
