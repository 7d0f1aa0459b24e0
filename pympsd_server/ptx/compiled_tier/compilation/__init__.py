"""The way from a kernel's text to its code: LLVM's own process, the files on disk, executable memory."""
