"""The command stream to an executor: records, ring, staging memory, host callbacks."""
