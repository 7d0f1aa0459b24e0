/* The functions that nvJitLink.h of CUDA 12.9 or 13.5 declares.
 *
 * The header makes a program call each function by a name with the header's version: nvJitLinkCreate of CUDA 13.5 is
 * __nvJitLinkCreate_13_5. A library has the names of all versions up to its own, and the one without a version. */

#define FORWARDED(name)                                                                                                 \
    FUNCTION(nvJitLink##name, 0, "")                                                                                    \
    OF_VERSION(name, 0)                                                                                                 \
    OF_VERSION(name, 1)                                                                                                 \
    OF_VERSION(name, 2)                                                                                                 \
    OF_VERSION(name, 3)                                                                                                 \
    OF_VERSION(name, 4)                                                                                                 \
    OF_VERSION(name, 5)                                                                                                 \
    OF_VERSION(name, 6)                                                                                                 \
    OF_VERSION(name, 7)                                                                                                 \
    OF_VERSION(name, 8)                                                                                                 \
    OF_VERSION(name, 9)
#if MAJOR == 12
#define OF_VERSION(name, minor) FUNCTION(__nvJitLink##name##_12_##minor, 0, "")
#else
#define OF_VERSION(name, minor) FUNCTION(__nvJitLink##name##_13_##minor, 0, "")
#endif
FORWARDED(AddData)
FORWARDED(AddFile)
FORWARDED(Complete)
FORWARDED(Create)
FORWARDED(Destroy)
FORWARDED(GetErrorLog)
FORWARDED(GetErrorLogSize)
FORWARDED(GetInfoLog)
FORWARDED(GetInfoLogSize)
FORWARDED(GetLinkedCubin)
FORWARDED(GetLinkedCubinSize)
FORWARDED(GetLinkedLTOIR)
FORWARDED(GetLinkedLTOIRSize)
FORWARDED(GetLinkedPtx)
FORWARDED(GetLinkedPtxSize)
FUNCTION(nvJitLinkVersion, 0, "")
#undef FORWARDED
#undef OF_VERSION
