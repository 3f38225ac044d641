# The warnings this project is clean of; errors only on request, so that a newer compiler never breaks a user's build.
set(host_warnings
    -Wall
    -Wextra
    -Wconversion
    -Wno-sign-conversion # sizes from int32_t fields index everywhere; the validator has already refused negatives
    -Wshadow
    -Wundef
    -Wno-psabi # a remark about an old AArch64 and x86 vector ABI change, about nothing that crosses our boundary
    # GCC 12 sees overlapping copies inside std::string's operator+ (its bug 105651)
    $<$<COMPILE_LANG_AND_ID:CXX,GNU>:$<$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>:-Wno-restrict>>
    $<$<BOOL:${DELTARELAY_WERROR}>:-Werror>)
# The host half of a .cu file is text that nvcc wrote, so only warnings that it is known to be free of.
set(cuda_warnings
    "-Xcompiler=-Wall,-Wextra,-Wno-psabi,-Wno-restrict"
    $<$<BOOL:${DELTARELAY_WERROR}>:-Werror=all-warnings>)
add_library(deltarelay_warnings INTERFACE)
target_compile_options(deltarelay_warnings INTERFACE "$<$<COMPILE_LANGUAGE:C,CXX>:${host_warnings}>"
                                                     "$<$<COMPILE_LANGUAGE:CUDA>:${cuda_warnings}>")
