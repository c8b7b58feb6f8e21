# spillway_folder(NAME): enters a source folder; its CMakeLists.txt calls spillway_library.
function(spillway_folder name)
  add_subdirectory(${PROJECT_SOURCE_DIR}/${name})
endfunction()

# spillway_library(NAME [WITHOUT ROOM...] [LIBRARIES ...]): a static library spillway_NAME from all .cpp files of this
# folder and its rooms, but for those of the rooms named after WITHOUT.
function(spillway_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "LIBRARIES;PRIVATE_LIBRARIES;ALONE;WITHOUT")
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
  foreach(room IN LISTS arg_WITHOUT)
    file(GLOB_RECURSE others CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${room}/*.cpp)
    list(REMOVE_ITEM sources ${others})
  endforeach()
  add_library(spillway_${name} STATIC ${sources})
  spillway_unity(spillway_${name} SOURCES ${sources} ALONE ${arg_ALONE})
  target_link_libraries(spillway_${name} PUBLIC spillway_options ${arg_LIBRARIES} PRIVATE ${arg_PRIVATE_LIBRARIES})
endfunction()
