# CUDA's toolkit for ggml's CUDA backend: the system's, or NVIDIA's wheels in the Python that builds;
# cuBLAS also from its wheel where a toolkit lacks it, since nvcc often comes alone. Sets
# CSB_CUBLAS_HEADERS; CSB_CUDA_LIBRARIES, what libcsb is linked with and what is opened before it (no
# path of this machine is written into it); CSB_CUDA_VERSION and CSB_CUDA_ARCHITECTURES.

set(CSB_CUBLAS_INCLUDE_DIR "" CACHE PATH
    "folder of cublas_v2.h; empty: CUDA's toolkit, then the wheel nvidia-cublas")

# FindCUDAToolkit before CMake 3.30 passes over CUDACXX, and any passes over the wheels, whose
# libraries have no plain .so names.
macro(_csb_find_toolkit wheels)
    set(nvcc ${CMAKE_CUDA_COMPILER})
    if(NOT nvcc)
        set(nvcc $ENV{CUDACXX})
    endif()
    if(NOT nvcc)
        find_package(CUDAToolkit QUIET)
        foreach(wheel ${wheels})
            if(NOT CUDAToolkit_FOUND AND EXISTS ${wheel}/bin/nvcc AND EXISTS ${wheel}/include/cuda_runtime.h)
                set(nvcc ${wheel}/bin/nvcc)
                set(CMAKE_CUDA_COMPILER ${nvcc} CACHE FILEPATH "of a wheel" FORCE)
            endif()
        endforeach()
    endif()
    if(nvcc)
        get_filename_component(root ${nvcc} DIRECTORY)
        get_filename_component(root ${root} DIRECTORY)
        file(GLOB cudart ${root}/lib/libcudart.so.*)
        if(cudart AND NOT EXISTS ${root}/lib/libcudart.so)
            list(GET cudart 0 cudart)
            set(CUDA_CUDART ${cudart} CACHE FILEPATH "of a wheel" FORCE)
            set(CUDA_cudart_LIBRARY ${cudart} CACHE FILEPATH "of a wheel" FORCE)
        endif()
        if(NOT CUDAToolkit_ROOT)
            set(CUDAToolkit_ROOT ${root})
        endif()
        find_package(CUDAToolkit QUIET)
    endif()
endmacro()

function(_csb_find_cuda)
    find_package(Python COMPONENTS Interpreter QUIET)
    set(packages "Python's packages")
    set(wheels "")
    if(Python_Interpreter_FOUND)
        execute_process(
            COMMAND ${Python_EXECUTABLE} -c "import sysconfig; print(sysconfig.get_path('purelib'))"
            OUTPUT_VARIABLE packages OUTPUT_STRIP_TRAILING_WHITESPACE)
        file(GLOB wheels ${packages}/nvidia/*)
    endif()

    _csb_find_toolkit("${wheels}")
    if(NOT CUDAToolkit_FOUND)
        message(FATAL_ERROR "csb: GGML_CUDA=ON needs CUDA's toolkit: install it, or "
            "pip install nvidia-cuda-nvcc nvidia-cuda-cccl nvidia-cublas. Looked for nvcc in PATH, "
            "/usr/local/cuda and ${packages}; the environment variable CUDACXX names another")
    endif()
    set(major ${CUDAToolkit_VERSION_MAJOR})
    set(package "nvidia-cublas==${major}.*")
    if(major LESS 13)
        set(package nvidia-cublas-cu${major})
    endif()

    foreach(library cublasLt cublas)
        if(NOT CUDA_${library}_LIBRARY)
            foreach(wheel ${wheels})
                if(EXISTS ${wheel}/lib/lib${library}.so.${major})
                    set(CUDA_${library}_LIBRARY ${wheel}/lib/lib${library}.so.${major}
                        CACHE FILEPATH "of a wheel" FORCE)
                endif()
            endforeach()
        endif()
        if(NOT CUDA_${library}_LIBRARY AND NOT GGML_STATIC)
            message(FATAL_ERROR "csb: no cuBLAS (lib${library}) for CUDA ${CUDAToolkit_VERSION}, "
                "neither in ${CUDAToolkit_LIBRARY_DIR} nor in ${packages}: install it, or "
                "pip install '${package}', and build again")
        endif()
    endforeach()

    set(folders ${CUDAToolkit_INCLUDE_DIRS})
    list(TRANSFORM wheels APPEND /include)
    list(APPEND folders ${wheels})
    if(CSB_CUBLAS_INCLUDE_DIR)
        set(folders ${CSB_CUBLAS_INCLUDE_DIR})
    endif()
    unset(CSB_CUBLAS_HEADERS CACHE) # what was found at an earlier configuration may be gone
    find_path(CSB_CUBLAS_HEADERS cublas_v2.h PATHS ${folders} NO_DEFAULT_PATH)
    mark_as_advanced(CSB_CUBLAS_HEADERS)
    if(NOT CSB_CUBLAS_HEADERS)
        message(FATAL_ERROR "csb: cublas_v2.h is not in ${folders}: install cuBLAS's headers, or "
            "pip install '${package}', and build again")
    endif()

    set(linked "")
    if(CMAKE_SYSTEM_NAME STREQUAL Linux AND NOT GGML_STATIC)
        foreach(library ${CUDA_CUDART} ${CUDA_cublasLt_LIBRARY} ${CUDA_cublas_LIBRARY})
            get_filename_component(folder ${library} DIRECTORY)
            execute_process(COMMAND ${CMAKE_COMMAND} -E env LC_ALL=C ${CMAKE_READELF} -d ${library}
                OUTPUT_VARIABLE dynamic)
            if(NOT dynamic MATCHES "soname: \\[([^]]+)\\]")
                message(FATAL_ERROR "csb: ${library} is no shared library with a SONAME")
            endif()
            list(APPEND linked ${folder}/${CMAKE_MATCH_1})
        endforeach()
    endif()
    message(STATUS "csb: CUDA ${CUDAToolkit_VERSION}, cuBLAS ${CUDA_cublas_LIBRARY}")
    set(CSB_CUDA_LIBRARIES ${linked} PARENT_SCOPE)
    set(CSB_CUDA_VERSION ${CUDAToolkit_VERSION} PARENT_SCOPE)
endfunction()

# After ggml is configured: without a device its own choice would be nvcc's oldest architecture, and
# so kernels that nobody runs.
function(_csb_check_cuda_architectures)
    get_target_property(architectures ggml-cuda CUDA_ARCHITECTURES)
    if(architectures STREQUAL native)
        message(FATAL_ERROR "csb: this machine has no CUDA device to build for: name the compute "
            "capability, as in -C cmake.define.CMAKE_CUDA_ARCHITECTURES=90 for 9.0")
    endif()
    string(REPLACE ";" " " architectures "${architectures}")
    set(CSB_CUDA_ARCHITECTURES "${architectures}" PARENT_SCOPE)
endfunction()
