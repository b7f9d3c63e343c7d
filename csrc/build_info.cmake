# What this build is, fixed at configure time: as a C string in the library (build_info.h) and as
# _build.json beside it, which Python reads before it loads the library, because a library built
# for other processor features may fault while it is being loaded.

# The features the CPU kernels are compiled with: the compiler's own macros under ggml-cpu's flags,
# in the names that Linux gives them in /proc/cpuinfo.
set(_features
    SSE3=pni SSSE3=ssse3 SSE4_1=sse4_1 SSE4_2=sse4_2 AVX=avx AVX2=avx2 FMA=fma F16C=f16c BMI=bmi1
    BMI2=bmi2 LZCNT=abm MOVBE=movbe AVXVNNI=avx_vnni AVX512F=avx512f AVX512BW=avx512bw
    AVX512CD=avx512cd AVX512DQ=avx512dq AVX512VL=avx512vl AVX512IFMA=avx512ifma
    AVX512VBMI=avx512vbmi AVX512VBMI2=avx512_vbmi2 AVX512VNNI=avx512_vnni
    AVX512BF16=avx512_bf16 AVX512FP16=avx512_fp16 AVX512BITALG=avx512_bitalg
    AVX512VPOPCNTDQ=avx512_vpopcntdq AMX_TILE=amx_tile AMX_INT8=amx_int8 AMX_BF16=amx_bf16
    GFNI=gfni VAES=vaes VPCLMULQDQ=vpclmulqdq
    ARM_FEATURE_DOTPROD=asimddp ARM_FEATURE_MATMUL_INT8=i8mm ARM_FEATURE_SVE=sve
    ARM_FEATURE_BF16_VECTOR_ARITHMETIC=bf16 ARM_FEATURE_FP16_VECTOR_ARITHMETIC=asimdhp)

set(_cpu_flags "")
if(TARGET ggml-cpu)
    get_target_property(_cpu_flags ggml-cpu COMPILE_OPTIONS)
    list(FILTER _cpu_flags INCLUDE REGEX "^-m")
endif()
set(_macros "")
if(NOT MSVC)
    file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/empty.cpp "")
    execute_process(
        COMMAND ${CMAKE_CXX_COMPILER} ${_cpu_flags} -dM -E ${CMAKE_CURRENT_BINARY_DIR}/empty.cpp
        OUTPUT_VARIABLE _macros)
endif()

set(_build "{}")
function(_set path value) # a string member of _build
    string(REPLACE "\\" "\\\\" value "${value}")
    string(REPLACE "\"" "\\\"" value "${value}")
    string(JSON _build SET "${_build}" ${path} "\"${value}\"")
    set(_build "${_build}" PARENT_SCOPE)
endfunction()

_set(csb "${SKBUILD_PROJECT_VERSION}")
_set(llama_commit "${CSB_LLAMA_COMMIT}")
_set(llama_pin "${CSB_LLAMA_PIN}")
_set(compiler "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}")
_set(build_type "${CMAKE_BUILD_TYPE}")
_set(system "${CMAKE_SYSTEM_NAME} ${CMAKE_SYSTEM_PROCESSOR}")
string(REPLACE ";" " " _flags "${_cpu_flags}")
_set(cpu_flags "${_flags}")
_set(amx_left_out "${CSB_AMX_LEFT_OUT}")

string(JSON _build SET "${_build}" cpu_features "[]")
set(_n 0)
foreach(_feature ${_features})
    string(REGEX MATCH "^([^=]+)=(.+)$" _ "${_feature}")
    if(_macros MATCHES "#define __${CMAKE_MATCH_1}_* ")
        string(REGEX MATCH "^([^=]+)=(.+)$" _ "${_feature}")
        string(JSON _build SET "${_build}" cpu_features ${_n} "\"${CMAKE_MATCH_2}\"")
        math(EXPR _n "${_n} + 1")
    endif()
endforeach()

string(JSON _build SET "${_build}" options "{}")
get_cmake_property(_variables CACHE_VARIABLES)
foreach(_variable ${_variables})
    get_property(_type CACHE ${_variable} PROPERTY TYPE)
    if(_variable MATCHES "^GGML_" AND NOT _type STREQUAL INTERNAL AND NOT _variable MATCHES "_DIR$")
        string(JSON _build SET "${_build}" options ${_variable} "\"${${_variable}}\"")
    endif()
endforeach()

string(JSON _build SET "${_build}" hooks "{}")
foreach(_hook graph=CSB_HOOKS kernels=CSB_HOOKS cupti=CSB_HAS_CUPTI
        vulkan=CSB_HAS_VULKAN_HOOK)
    string(REGEX MATCH "^(.+)=(.+)$" _ ${_hook})
    set(_there false)
    if(${CMAKE_MATCH_2})
        set(_there true)
    endif()
    string(JSON _build SET "${_build}" hooks ${CMAKE_MATCH_1} ${_there})
endforeach()
_set(cupti_api "${CSB_CUPTI_API}")

_set(cuda "${CSB_CUDA_VERSION}")
_set(cuda_architectures "${CSB_CUDA_ARCHITECTURES}")
string(JSON _build SET "${_build}" cuda_libraries "[]")
set(_n 0)
foreach(_library ${CSB_CUDA_LIBRARIES})
    string(JSON _build SET "${_build}" cuda_libraries ${_n} "\"${_library}\"")
    math(EXPR _n "${_n} + 1")
endforeach()

file(GENERATE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/_build.json CONTENT "${_build}\n")
file(GENERATE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/build_info.h
    CONTENT "static const char CSB_BUILD_INFO[] = R\"json(${_build})json\";\n")
