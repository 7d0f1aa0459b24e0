"""Lower a syntax tree to flat operations: resolve names, inline calls, find basic blocks."""
