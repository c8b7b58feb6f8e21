# spillway_folder(NAME): enters a source folder; its CMakeLists.txt calls spillway_library.
function(spillway_folder name)
  add_subdirectory(${PROJECT_SOURCE_DIR}/${name})
endfunction()

# spillway_library(NAME [LIBRARIES ...]): a static library spillway_NAME from all .cpp files of this folder.
function(spillway_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "LIBRARIES;PRIVATE_LIBRARIES;ALONE")
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp ${CMAKE_CURRENT_SOURCE_DIR}/movement/*.cpp)
  add_library(spillway_${name} STATIC ${sources})
  spillway_unity(spillway_${name} SOURCES ${sources} ALONE ${arg_ALONE})
  target_link_libraries(spillway_${name} PUBLIC spillway_options ${arg_LIBRARIES} PRIVATE ${arg_PRIVATE_LIBRARIES})
endfunction()
