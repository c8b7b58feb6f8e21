# spillway_plugin_headers(TARGET): the headers that the source of a plugin needs (policies/common/plugin.hpp and all that
# it includes), in build/PRESET/include, with one of their own, policies/common/plugin_abi.hpp: the version of Spillway
# and a hash of them all. TARGET, which loads plugins, is compiled with that one. `cmake --install build/PRESET
# --component plugin --prefix DIR` puts them into DIR/include/spillway.
function(spillway_plugin_headers target)
  set(folder ${PROJECT_BINARY_DIR}/include)
  set(stamp ${PROJECT_BINARY_DIR}/plugin_headers.stamp)
  set(script ${PROJECT_SOURCE_DIR}/cmake/SpillwayPluginScript.cmake)
  set(generated ${PROJECT_BINARY_DIR}/plugin_abi)
  # Those that may be included: which of them are is found when one of them has changed.
  file(GLOB_RECURSE headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/base/*.hpp ${PROJECT_SOURCE_DIR}/policies/*.hpp)
  add_custom_command(
    OUTPUT ${stamp}
    BYPRODUCTS ${generated}/policies/common/plugin_abi.hpp
    COMMAND ${CMAKE_COMMAND} -DSOURCE=${PROJECT_SOURCE_DIR} -DFOLDER=${folder} -DGENERATED=${generated}
            -DVERSION=${PROJECT_VERSION} -DSTAMP=${stamp} -P ${script}
    DEPENDS ${headers} ${script}
    COMMENT "Headers for plugins" VERBATIM)
  add_custom_target(spillway_plugin_include DEPENDS ${stamp})
  add_dependencies(${target} spillway_plugin_include)
  target_include_directories(${target} PRIVATE ${generated})
  install(DIRECTORY ${folder}/ DESTINATION include/spillway COMPONENT plugin EXCLUDE_FROM_ALL)
endfunction()
