# CUPTI's header, for the names of the kernels that run on CUDA. Its library is not linked, so that
# csb runs without it: hooks/cupti.cpp opens it. Sets CSB_HAS_CUPTI, CSB_CUPTI_INCLUDES, CSB_CUPTI_API
# (the header's CUPTI_API_VERSION) and CSB_CUPTI_BESIDE (the library of the same folder, or nothing).

set(CSB_CUPTI AUTO CACHE STRING "ON, OFF or AUTO: where GGML_CUDA is on and the header is found")
set(CSB_CUPTI_INCLUDE_DIR "" CACHE PATH
    "folder of cupti_activity.h; empty: CUDA's toolkit, then the wheel nvidia-cuda-cupti")

set(CSB_HAS_CUPTI OFF)
set(CSB_CUPTI_INCLUDES "")
set(CSB_CUPTI_API "")
set(CSB_CUPTI_BESIDE "")

function(_look_for_cupti)
    # The header needs CUDA's own (cuda.h): the toolkit's, or those of wheels beside CUPTI's.
    find_package(CUDAToolkit QUIET)
    find_package(Python COMPONENTS Interpreter QUIET)
    set(toolkit "")
    foreach(dir ${CUDAToolkit_INCLUDE_DIRS})
        list(APPEND toolkit
            ${dir} ${dir}/../extras/CUPTI/include ${dir}/../../../extras/CUPTI/include)
    endforeach()
    set(wheels "")
    if(Python_Interpreter_FOUND)
        execute_process(
            COMMAND ${Python_EXECUTABLE} -c "import sysconfig; print(sysconfig.get_path('purelib'))"
            OUTPUT_VARIABLE packages OUTPUT_STRIP_TRAILING_WHITESPACE)
        file(GLOB wheels ${packages}/nvidia/*/include)
    endif()
    set(folders ${toolkit} ${wheels})
    if(CSB_CUPTI_INCLUDE_DIR)
        set(folders ${CSB_CUPTI_INCLUDE_DIR})
    endif()
    unset(CSB_CUPTI_HEADERS CACHE) # what was found at an earlier configuration may be gone
    find_path(CSB_CUPTI_HEADERS cupti_activity.h PATHS ${folders} NO_DEFAULT_PATH)
    mark_as_advanced(CSB_CUPTI_HEADERS)
    if(NOT CSB_CUPTI_HEADERS)
        set(_why "cupti_activity.h is not in ${folders}" PARENT_SCOPE)
        return()
    endif()

    set(includes ${CSB_CUPTI_HEADERS} ${CUDAToolkit_INCLUDE_DIRS} ${wheels})
    set(check ${CMAKE_CURRENT_BINARY_DIR}/cupti_check)
    file(WRITE ${check}.cpp
        "#include <cupti_activity.h>\n#include <cupti_version.h>\n"
        "static_assert(CUPTI_API_VERSION >= 19, \"CUDA 12 or newer\");\nint main() {}\n")
    try_compile(compiles ${check} ${check}.cpp
        CMAKE_FLAGS "-DINCLUDE_DIRECTORIES:STRING=${includes}"
        OUTPUT_VARIABLE said)
    if(NOT compiles)
        set(_why "${CSB_CUPTI_HEADERS}/cupti_activity.h does not compile:\n${said}" PARENT_SCOPE)
        return()
    endif()

    file(STRINGS ${CSB_CUPTI_HEADERS}/cupti_version.h line REGEX "define CUPTI_API_VERSION [0-9]+")
    string(REGEX MATCH "[0-9]+" api "${line}")
    file(GLOB libraries
        ${CSB_CUPTI_HEADERS}/../lib64/libcupti.so* ${CSB_CUPTI_HEADERS}/../lib/libcupti.so*)
    set(library "")
    if(libraries)
        list(GET libraries 0 library)
        get_filename_component(library ${library} ABSOLUTE)
    endif()
    message(STATUS "csb: CUPTI ${api} from ${CSB_CUPTI_HEADERS}")
    set(CSB_HAS_CUPTI ON PARENT_SCOPE)
    set(CSB_CUPTI_INCLUDES ${includes} PARENT_SCOPE)
    set(CSB_CUPTI_API ${api} PARENT_SCOPE)
    set(CSB_CUPTI_BESIDE "${library}" PARENT_SCOPE)
endfunction()

if(CSB_CUPTI STREQUAL AUTO)
    if(CSB_HOOKS AND GGML_CUDA)
        _look_for_cupti()
        if(NOT CSB_HAS_CUPTI)
            message(WARNING "csb: CUDA's kernels can't be named: ${_why}\npip install "
                "nvidia-cuda-cupti, or give -C cmake.define.CSB_CUPTI_INCLUDE_DIR=FOLDER")
        endif()
    endif()
elseif(CSB_CUPTI)
    if(NOT CSB_HOOKS)
        message(FATAL_ERROR "CSB_CUPTI=${CSB_CUPTI} needs CSB_HOOKS")
    endif()
    _look_for_cupti()
    if(NOT CSB_HAS_CUPTI)
        message(FATAL_ERROR "CSB_CUPTI=${CSB_CUPTI}: ${_why}")
    endif()
endif()
