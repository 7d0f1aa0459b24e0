"""What the client does without the interpreter, where a C compiler was there when it was installed."""
