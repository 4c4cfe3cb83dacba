# What holds for every target of this tree: language level, warnings, the layout of the build folder, ccache.

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 11)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
# O2 rather than CMake's O3, which costs build time and gains nothing here. NDEBUG always: LibTorch's wheel is built
# with it and the layout of some of its classes depends on it.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")
set(CMAKE_C_FLAGS_RELEASE "-O2 -DNDEBUG")
set(CMAKE_CXX_FLAGS_DEBUG "-O0 -g -DNDEBUG")
set(CMAKE_C_FLAGS_DEBUG "-O0 -g -DNDEBUG")

# The build folder has the layout of an installed tree, so that finding plugins and the engine program is one rule.
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)

find_program(CAPSTAN_CCACHE ccache)
if(CAPSTAN_CCACHE)
  # Without these ccache keeps nothing of a file that uses a precompiled header. No file of ours writes the time of its
  # own compilation. ccache remembers the checksum of a precompiled header by its inode: reading one of 700 MB again for
  # each file that uses it would take a second of a processor.
  set(launcher env CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime CCACHE_INODECACHE=true
    ${CAPSTAN_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${launcher})
  set(CMAKE_C_COMPILER_LAUNCHER ${launcher})
endif()

set(CAPSTAN_SANITIZE "" CACHE STRING "Sanitizers for the whole tree, as -fsanitize= takes them")
if(CAPSTAN_SANITIZE)
  set(CMAKE_CXX_FLAGS_RELEASE "-O1 -DNDEBUG")
  set(CMAKE_C_FLAGS_RELEASE "-O1 -DNDEBUG")
  add_compile_options(-fsanitize=${CAPSTAN_SANITIZE} -fno-omit-frame-pointer -g1)
  add_link_options(-fsanitize=${CAPSTAN_SANITIZE})
endif()

# Warnings, as an interface: targets of this tree link it privately.
add_library(capstan_warnings INTERFACE)
target_compile_options(capstan_warnings INTERFACE -Wall -Wextra -Wno-missing-field-initializers)
