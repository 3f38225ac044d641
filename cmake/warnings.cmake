# Warnings that this project is free of. They are errors only on request, so that a newer compiler never breaks a user's
# build.
set(host_warnings
    -Wall
    -Wextra
    -Wconversion
    -Wno-sign-conversion # sizes from int32_t fields index everywhere; the validator has already refused negatives
    -Wshadow
    -Wundef
    -Wno-psabi # a note about an old vector ABI change on AArch64 and x86; no such type crosses our API
    # GCC 12 sees overlapping copies inside std::string's operator+ (its bug 105651)
    $<$<COMPILE_LANG_AND_ID:CXX,GNU>:$<$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>:-Wno-restrict>>
    $<$<BOOL:${DELTARELAY_WERROR}>:-Werror>)
# nvcc writes the host part of a .cu file, so it gets only warnings that nvcc's text is free of.
set(cuda_warnings
    "-Xcompiler=-Wall,-Wextra,-Wno-psabi,-Wno-restrict"
    $<$<BOOL:${DELTARELAY_WERROR}>:-Werror=all-warnings>)
add_library(deltarelay_warnings INTERFACE)
target_compile_options(deltarelay_warnings INTERFACE "$<$<COMPILE_LANGUAGE:C,CXX>:${host_warnings}>"
                                                     "$<$<COMPILE_LANGUAGE:CUDA>:${cuda_warnings}>")
