# The libraries of a folder that scripts/gpu-bundle filled, as the targets that find_package and pkg-config give
# elsewhere. Nothing outside the folder is looked at, pkg-config is not needed, and the folder may lie anywhere.
#
#   DIR/MANIFEST   format, architecture, C library, packages
#   DIR/include    headers
#   DIR/lib        libraries; libopenblas.so.0 has only what Spillway calls
#   DIR/cmake      Catch.cmake
if(NOT EXISTS ${SPILLWAY_BUNDLE}/MANIFEST)
  message(FATAL_ERROR "SPILLWAY_BUNDLE=${SPILLWAY_BUNDLE}: there is no MANIFEST in this folder. Fill one with "
                      "scripts/gpu-bundle, unpack it if it is a .tgz, and name the folder.")
endif()
file(STRINGS ${SPILLWAY_BUNDLE}/MANIFEST spillway_manifest)
if(NOT "format 1" IN_LIST spillway_manifest)
  message(FATAL_ERROR "SPILLWAY_BUNDLE=${SPILLWAY_BUNDLE} was made for another version. Make it again: scripts/gpu-bundle")
endif()
if(NOT "architecture ${CMAKE_SYSTEM_PROCESSOR}" IN_LIST spillway_manifest)
  message(FATAL_ERROR "SPILLWAY_BUNDLE=${SPILLWAY_BUNDLE} was made on another architecture than "
                      "${CMAKE_SYSTEM_PROCESSOR}. Make it on a machine of this one: scripts/gpu-bundle")
endif()

# spillway_bundled(TARGET [LIBRARY FILE] [LINK ITEM...] [DEFINE NAME...])
function(spillway_bundled target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "LIBRARY" "LINK;DEFINE")
  if(NOT arg_LIBRARY)
    add_library(${target} INTERFACE IMPORTED GLOBAL)
  else()
    add_library(${target} UNKNOWN IMPORTED GLOBAL)
    if(NOT EXISTS ${SPILLWAY_BUNDLE}/lib/${arg_LIBRARY})
      message(FATAL_ERROR "SPILLWAY_BUNDLE=${SPILLWAY_BUNDLE} lacks lib/${arg_LIBRARY}. Make it again: scripts/gpu-bundle")
    endif()
    set_target_properties(${target} PROPERTIES IMPORTED_LOCATION ${SPILLWAY_BUNDLE}/lib/${arg_LIBRARY})
  endif()
  set_target_properties(${target} PROPERTIES INTERFACE_INCLUDE_DIRECTORIES ${SPILLWAY_BUNDLE}/include)
  set_target_properties(${target} PROPERTIES INTERFACE_SYSTEM_INCLUDE_DIRECTORIES ${SPILLWAY_BUNDLE}/include)
  target_link_libraries(${target} INTERFACE ${arg_LINK})
  target_compile_definitions(${target} INTERFACE ${arg_DEFINE})
endfunction()

# C++ libraries as headers only, so that no code of another compiler is linked; SentencePiece, which has no such form,
# as a shared library for the C++ runtime of GCC.
spillway_bundled(fmt::fmt DEFINE FMT_HEADER_ONLY=1)
spillway_bundled(nlohmann_json::nlohmann_json)
spillway_bundled(Boost::headers)
spillway_bundled(Boost::boost)
spillway_bundled(tomlplusplus::tomlplusplus)
spillway_bundled(CLI11::CLI11)
spillway_bundled(Catch2::Catch2)
list(APPEND CMAKE_MODULE_PATH ${SPILLWAY_BUNDLE}/cmake)  # Catch.cmake

spillway_bundled(ZLIB::ZLIB LIBRARY libz.so.1)
spillway_bundled(SQLite::SQLite3 LIBRARY libsqlite3.so.0)
spillway_bundled(Boost::context LIBRARY libboost_context.a)
spillway_bundled(PkgConfig::xxhash LIBRARY libxxhash.a)
spillway_bundled(PkgConfig::liburing LIBRARY liburing.a)
spillway_bundled(PkgConfig::numa LIBRARY libnuma.a)
spillway_bundled(PkgConfig::openblas LIBRARY libopenblas.so.0)
spillway_bundled(PkgConfig::pcre2 LIBRARY libpcre2-8.a)
spillway_bundled(PkgConfig::utf8proc LIBRARY libutf8proc.a)
spillway_bundled(PkgConfig::nlopt LIBRARY libnlopt.so.0)
spillway_bundled(PkgConfig::sentencepiece LIBRARY libsentencepiece.so.0)

# With an old-style RPATH the folder is searched for what libglpk itself needs, too.
spillway_bundled(spillway_bundle::glpk LIBRARY libglpk.so.40)
target_link_options(spillway_bundle::glpk INTERFACE -Wl,--disable-new-dtags)
set(GLPK_LIBRARY spillway_bundle::glpk)
