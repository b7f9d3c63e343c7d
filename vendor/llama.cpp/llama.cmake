# Gets llama.cpp's source (README.md beside this file says from where) and configures ggml and
# libllama as static libraries. Sets CSB_LLAMA_DIR, CSB_LLAMA_COMMIT and CSB_LLAMA_PINNED.

set(CSB_LLAMA_CPP_SOURCE "" CACHE PATH "your own llama.cpp checkout; empty: the pinned source")

file(READ ${CMAKE_CURRENT_LIST_DIR}/pin.json _pin)
string(JSON CSB_LLAMA_PIN GET "${_pin}" commit)
string(JSON CSB_LLAMA_VERSION GET "${_pin}" version)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/pin.json)

if(CSB_LLAMA_CPP_SOURCE)
    if(NOT EXISTS ${CSB_LLAMA_CPP_SOURCE}/include/llama.h)
        message(FATAL_ERROR "CSB_LLAMA_CPP_SOURCE=${CSB_LLAMA_CPP_SOURCE} has no include/llama.h: "
                            "give the top folder of a llama.cpp checkout")
    endif()
    get_filename_component(CSB_LLAMA_DIR ${CSB_LLAMA_CPP_SOURCE} ABSOLUTE)
    set(CSB_LLAMA_COMMIT unknown)
    find_package(Git QUIET)
    if(Git_FOUND AND EXISTS ${CSB_LLAMA_DIR}/.git)
        execute_process(COMMAND ${GIT_EXECUTABLE} describe --always --abbrev=40 --dirty --exclude=*
            WORKING_DIRECTORY ${CSB_LLAMA_DIR}
            OUTPUT_VARIABLE CSB_LLAMA_COMMIT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    elseif(EXISTS ${CSB_LLAMA_DIR}/.csb-manifest.json)
        set(CSB_LLAMA_COMMIT ${CSB_LLAMA_PIN}) # a folder of csb's own cache
    endif()
    if(NOT CSB_LLAMA_COMMIT STREQUAL CSB_LLAMA_PIN)
        message(WARNING "llama.cpp in ${CSB_LLAMA_DIR} is at ${CSB_LLAMA_COMMIT}, csb is written for "
                        "${CSB_LLAMA_PIN}; every record will name what was built")
    endif()
else()
    find_package(Python COMPONENTS Interpreter REQUIRED)
    execute_process(COMMAND ${Python_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/fetch.py
        OUTPUT_VARIABLE CSB_LLAMA_DIR OUTPUT_STRIP_TRAILING_WHITESPACE
        ERROR_VARIABLE _said RESULT_VARIABLE _failed)
    if(_failed)
        string(STRIP "${_said}" _said)
        message(FATAL_ERROR "${_said}")
    endif()
    set(CSB_LLAMA_COMMIT ${CSB_LLAMA_PIN})
endif()
message(STATUS "csb: llama.cpp ${CSB_LLAMA_COMMIT} from ${CSB_LLAMA_DIR}")

# Defaults that differ when llama.cpp is a subproject, or that depend on the environment. They are
# cache defaults only: -C cmake.define.GGML_...=... wins.
set(GGML_NATIVE ON CACHE BOOL "optimize for this machine, also under SOURCE_DATE_EPOCH")
set(GGML_LLAMAFILE ON CACHE BOOL "llama.cpp's own default; ggml alone says OFF")
set(GGML_CUDA_GRAPHS ON CACHE BOOL "llama.cpp's own default; ggml alone says OFF")
set(GGML_CUDA_NO_VMM ON CACHE BOOL "no hard dependency on the driver library")
set(GGML_CUDA_NCCL OFF CACHE BOOL "csb measures one process")
set(GGML_CCACHE OFF CACHE BOOL "it would set a rule for csrc/ too")
set(GGML_ALL_WARNINGS OFF CACHE BOOL "llama.cpp's warnings are its own")
set(GGML_LTO OFF CACHE BOOL "link-time optimization would resolve the hooks' references" FORCE)
set(CMAKE_INTERPROCEDURAL_OPTIMIZATION OFF)
set(BUILD_SHARED_LIBS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(GIT_EXE "" CACHE FILEPATH "empty: ggml must not ask git, whose answer would force a rebuild")

# What llama.cpp's own top level would have defined for its src/. Entering below it skips its
# vendored libraries; EXCLUDE_FROM_ALL keeps its install rules out of the wheel.
set(LLAMA_VERSION ${CSB_LLAMA_VERSION})
string(REGEX REPLACE "-.*" "" LLAMA_VERSION_BASE ${LLAMA_VERSION})
string(REGEX REPLACE "\\..*" "" LLAMA_VERSION_MAJOR ${LLAMA_VERSION})
set(LLAMA_BUILD_COMMIT ${CSB_LLAMA_COMMIT})
function(llama_add_compile_flags)
endfunction()

foreach(_of LIBRARIES VERSION ARCHITECTURES)
    set(CSB_CUDA_${_of} "")
endforeach()
if(GGML_CUDA)
    include(${CMAKE_CURRENT_LIST_DIR}/cuda.cmake)
    _csb_find_cuda()
endif()
add_subdirectory(${CSB_LLAMA_DIR}/ggml ${CMAKE_BINARY_DIR}/llama.cpp/ggml EXCLUDE_FROM_ALL)
add_subdirectory(${CSB_LLAMA_DIR}/src ${CMAKE_BINARY_DIR}/llama.cpp/src EXCLUDE_FROM_ALL)
if(GGML_CUDA)
    _csb_check_cuda_architectures()
    # SYSTEM comes after nvcc's own folders: a wheel's may hold another version's cudart too
    target_include_directories(ggml-cuda SYSTEM PRIVATE ${CSB_CUBLAS_HEADERS})
endif()
foreach(_target llama ggml ggml-base ggml-cpu)
    if(TARGET ${_target} AND NOT MSVC)
        target_compile_options(${_target} PRIVATE -fno-lto)
    endif()
endforeach()

# llama.cpp's RPC server for the other machine, as it is: tools/rpc.
if(GGML_RPC AND EXISTS ${CSB_LLAMA_DIR}/tools/rpc/CMakeLists.txt)
    add_subdirectory(${CSB_LLAMA_DIR}/tools/rpc ${CMAKE_BINARY_DIR}/llama.cpp/rpc EXCLUDE_FROM_ALL)
endif()

# GCC's _tile_loadconfig tells the compiler that it reads 8 of the configuration's 64 bytes, so the
# stores of the others are dropped and the first AMX product faults (llama.cpp pull request 26954).
# With such a compiler AMX is left out, and the build's record says so.
set(CSB_AMX_LEFT_OUT "")
if(TARGET ggml-cpu AND CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    file(WRITE ${CMAKE_BINARY_DIR}/amx.cpp "#include <immintrin.h>\n")
    execute_process(COMMAND ${CMAKE_CXX_COMPILER} -E ${CMAKE_BINARY_DIR}/amx.cpp
        OUTPUT_VARIABLE _intrinsics ERROR_QUIET)
    if(_intrinsics MATCHES "ldtilecfg[^;]*\\(const void \\*\\*\\)")
        set(CSB_AMX_LEFT_OUT "this compiler's _tile_loadconfig is unsafe")
        target_compile_options(ggml-cpu PRIVATE -mno-amx-tile -mno-amx-int8 -mno-amx-bf16)
        message(STATUS "csb: AMX is left out: ${CSB_AMX_LEFT_OUT}")
    endif()
endif()
