"""Libraries and their kernels, and linking."""

from __future__ import annotations

from typing import Final

from pympsd_client.signatures.rows import chapter

_LIBRARIES: Final = """
cuLibraryLoadData(out CUlibrary library, void *code, CUjit_option *jitOptions, void **jitOptionsValues,
    unsigned int numJitOptions, CUlibraryOption *libraryOptions, void **libraryOptionValues,
    unsigned int numLibraryOptions) = load
cuLibraryLoadFromFile(out CUlibrary library, char *fileName, CUjit_option *jitOptions, void **jitOptionsValues,
    unsigned int numJitOptions, CUlibraryOption *libraryOptions, void **libraryOptionValues,
    unsigned int numLibraryOptions) = load_from_file
cuLibraryUnload(CUlibrary library) = unload
cuLibraryGetKernel(out CUkernel pKernel, CUlibrary library, char *name) = kernel
cuLibraryGetKernelCount(out unsigned int count, CUlibrary lib) = kernel_count
cuLibraryEnumerateKernels(out CUkernel *kernels, unsigned int numKernels, CUlibrary lib) = enumerate_kernels
cuLibraryGetModule(out CUmodule pMod, CUlibrary library) = module
cuLibraryGetGlobal(out CUdeviceptr dptr, out size_t numbytes, CUlibrary library, char *name) = variable
cuLibraryGetManaged(out CUdeviceptr dptr, out size_t numbytes, CUlibrary library, char *name) = managed_variable
cuLibraryGetUnifiedFunction(out void *fptr, CUlibrary library, char *symbol) = unified_function
cuKernelGetFunction(out CUfunction pFunc, CUkernel kernel) = function
cuKernelGetLibrary(out CUlibrary pLib, CUkernel kernel) = library_of_kernel
cuKernelGetName(out char *name, CUkernel hfunc) = name
cuKernelGetAttribute(out int pi, CUfunction_attribute attrib, CUkernel kernel, CUdevice dev) = attribute
cuKernelSetAttribute(CUfunction_attribute attrib, int val, CUkernel kernel, CUdevice dev) = set_attribute
cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache config, CUdevice dev) = set_cache_preference
cuKernelGetParamInfo(CUkernel kernel, size_t paramIndex, out size_t paramOffset, out size_t paramSize) = parameter
cuKernelGetParamCount(CUkernel kernel, out size_t paramCount) = parameter_count
"""

_LINKS: Final = """
cuLinkCreate(unsigned int numOptions, CUjit_option *options, void **optionValues, out CUlinkState stateOut) = create
cuLinkAddData(CUlinkState state, CUjitInputType typename, void *data, size_t size, char *name,
    unsigned int numOptions, CUjit_option *options, void **optionValues) = add
cuLinkAddFile(CUlinkState state, CUjitInputType typename, char *path, unsigned int numOptions, CUjit_option *options,
    void **optionValues) = add_file
cuLinkComplete(CUlinkState state, out void *cubinOut, out size_t sizeOut) = complete
cuLinkDestroy(CUlinkState state) = destroy
"""

ROWS: Final = (
    *chapter("_api.library", _LIBRARIES),
    *chapter("_api.link", _LINKS),
)
