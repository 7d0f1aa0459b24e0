"""This package turns a kernel's text into its code: LLVM's own process, files on disk, executable memory."""
