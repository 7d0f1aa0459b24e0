"""From a kernel's text to its code: LLVM's own process, files on disk, executable memory."""
