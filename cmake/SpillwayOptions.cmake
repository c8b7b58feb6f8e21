# spillway_options: what every target of ours is compiled with.
add_library(spillway_options INTERFACE)
target_compile_features(spillway_options INTERFACE cxx_std_20)
target_include_directories(spillway_options INTERFACE ${PROJECT_SOURCE_DIR})
target_compile_definitions(spillway_options INTERFACE SPILLWAY_VERSION="${PROJECT_VERSION}")
# -ffp-contract=off: a multiply-add is rounded the same on every CPU, so numbers do not depend on it.
target_compile_options(spillway_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -ffp-contract=off>)
# A variable may have the name of another source's helper that happens to be compiled with it (SpillwayUnity.cmake).
set(SPILLWAY_SHADOW_WARNING -Wshadow)
if(SPILLWAY_UNITY AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(SPILLWAY_SHADOW_WARNING -Wshadow=local -Wno-subobject-linkage)  # a private type is not in the main file there
endif()
target_compile_options(spillway_options INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${SPILLWAY_SHADOW_WARNING}>")
# Warnings are errors on the compiler that Spillway is developed with. Others see what is not there (g++ 13: writes
# at address zero inside std::vector), and must be able to build it all the same. nvcc gives g++ its own code.
set(SPILLWAY_WARNINGS_ARE_ERRORS OFF)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  set(SPILLWAY_WARNINGS_ARE_ERRORS ON)
  target_compile_options(spillway_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
# g++ 12 warns of impossible overlaps inside std::string at -O3 (GCC bug 105329).
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(spillway_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)
endif()
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
# Libraries in a folder lib beside a program are taken first, so that scripts/gpu-bundle --prebuilt can bring them along.
# With an old-style RPATH, what those libraries themselves need is looked for there, too.
list(PREPEND CMAKE_BUILD_RPATH "$ORIGIN/lib")
add_link_options(-Wl,--disable-new-dtags)
if(SPILLWAY_SANITIZE)
  # With sanitizers g++ 12 takes parts of std::regex for uninitialized.
  target_compile_options(spillway_options INTERFACE -fsanitize=${SPILLWAY_SANITIZE} -fno-omit-frame-pointer -g
                         $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  target_link_options(spillway_options INTERFACE -fsanitize=${SPILLWAY_SANITIZE})
endif()
if(SPILLWAY_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "SPILLWAY_FUZZ: libFuzzer comes with clang, and the compiler is ${CMAKE_CXX_COMPILER_ID}. "
                        "Build the preset fuzz: scripts/build fuzz")
  endif()
  # Every library counts the edges it takes; each target of tests/fuzz links the fuzzer itself.
  target_compile_options(spillway_options INTERFACE -fsanitize=fuzzer-no-link -fno-sanitize-recover=all
                         -gline-tables-only)
endif()

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()
if(CMAKE_CXX_COMPILER_LAUNCHER MATCHES "ccache" AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
endif()
