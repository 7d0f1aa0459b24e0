"""What happens to a kernel's text and code: LLVM's own process, the files on disk, executable memory."""
