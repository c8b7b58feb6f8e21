# Every library Spillway needs, found once. All are Debian packages: scripts/install-dependencies. On machines
# without them, SPILLWAY_BUNDLE names a folder that scripts/gpu-bundle filled.
set(SPILLWAY_BUNDLE "$ENV{SPILLWAY_BUNDLE}" CACHE PATH "Folder of scripts/gpu-bundle to take the libraries from")
find_package(Threads REQUIRED)
if(SPILLWAY_BUNDLE)
  include(SpillwayBundle)
  return()
endif()
find_package(PkgConfig REQUIRED)
find_package(ZLIB REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(Boost REQUIRED)  # Boost.Graph, header-only here
find_package(tomlplusplus REQUIRED)
find_package(CLI11 REQUIRED)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(liburing REQUIRED IMPORTED_TARGET liburing)
pkg_check_modules(numa REQUIRED IMPORTED_TARGET numa)
pkg_check_modules(pcre2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(sentencepiece REQUIRED IMPORTED_TARGET sentencepiece)
pkg_check_modules(utf8proc REQUIRED IMPORTED_TARGET libutf8proc)
pkg_check_modules(openblas REQUIRED IMPORTED_TARGET openblas)
pkg_check_modules(nlopt REQUIRED IMPORTED_TARGET nlopt)
find_library(GLPK_LIBRARY glpk REQUIRED)  # no pkg-config file; its header is in the usual place
