# spillway_unity(TARGET SOURCES FILE... [ALONE NAME...]): compiles the sources of a target in batches, each as if it
# were one file. What headers cost is then paid once for a batch.
#
# The sources of a batch share one anonymous namespace. Sources that define the same name or macro at file level are
# therefore put into different batches, so that nobody has to invent longer names. A source that cannot be compiled
# with others all the same is named after ALONE. A source belongs to one target of a folder.
#
# -DSPILLWAY_UNITY=OFF, as in the preset debug, makes an object of every source: an edit compiles that source only, and
# a forgotten #include is found.
option(SPILLWAY_UNITY "Compile several sources of a folder as one" ON)
set(SPILLWAY_UNITY_SIZE 8 CACHE STRING "So many sources at most are compiled as one")

# What a source defines at file level: definitions, and aliases as NAME:TEXT. clang-format puts all of it at the start
# of a line, and the bodies of functions and classes not.
function(spillway_file_level source definitions aliases)
  file(READ ${source} text)
  string(REGEX REPLACE "[][;\\]" "," text "\n${text}")  # signs that would mean something in a list
  set(names)
  set(alias_texts)
  set(name "[A-Za-z_][A-Za-z_0-9]*")
  string(REGEX MATCHALL "\n((enum class|enum|struct|class) +${name}|using +${name} *=[^\n]*|#define +${name}|(constexpr|const) [^\n]*|[A-Za-z][^\n(={,]*[ &*>]${name} *[(={,]|${name}\\()"
         lines "${text}")
  foreach(line IN LISTS lines)
    if(line MATCHES "^\nusing +(${name}) *=(.*)")
      list(APPEND alias_texts "${CMAKE_MATCH_1}:${CMAKE_MATCH_2}")
    elseif(line MATCHES "^\n(using|namespace|template|TEST_CASE|return)[^A-Za-z_]")
      continue()
    elseif(line MATCHES "^\n(constexpr|const) ")
      string(REGEX MATCHALL "[ &*>]${name} *[(={]" several "${line}")  # kibi = 1024, mebi = 1024 * kibi
      string(REGEX REPLACE "[ &*>({=]" "" several "${several}")
      list(APPEND names ${several})
    elseif(line MATCHES "(${name}) *[(={,]?$")
      list(APPEND names ${CMAKE_MATCH_1})
    endif()
  endforeach()
  list(REMOVE_DUPLICATES names)
  set(${definitions} "${names}" PARENT_SCOPE)
  set(${aliases} "${alias_texts}" PARENT_SCOPE)
endfunction()

# The aliases of both lists, each once, reduced to names, and the definitions of both: a name that is there twice
# cannot be in one batch.
function(spillway_can_share result definitions aliases)
  list(REMOVE_DUPLICATES aliases)
  list(TRANSFORM aliases REPLACE ":.*" "")
  list(APPEND definitions ${aliases})
  list(LENGTH definitions all)
  list(REMOVE_DUPLICATES definitions)
  list(LENGTH definitions different)
  if(all EQUAL different)
    set(${result} ON PARENT_SCOPE)
  else()
    set(${result} OFF PARENT_SCOPE)
  endif()
endfunction()

function(spillway_unity target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;ALONE")
  if(NOT SPILLWAY_UNITY)
    return()
  endif()
  set(batches 0)
  foreach(source IN LISTS arg_SOURCES)
    get_filename_component(short ${source} NAME)
    if(short IN_LIST arg_ALONE)
      continue()
    endif()
    spillway_file_level(${source} definitions aliases)
    # Into the first batch that has room and none of the names.
    set(batch 0)
    while(batch LESS batches)
      list(LENGTH sources_${batch} size)
      if(size LESS SPILLWAY_UNITY_SIZE)
        spillway_can_share(can "${definitions_${batch}};${definitions}" "${aliases_${batch}};${aliases}")
        if(can)
          break()
        endif()
      endif()
      math(EXPR batch "${batch} + 1")
    endwhile()
    if(batch EQUAL batches)
      math(EXPR batches "${batches} + 1")
    endif()
    list(APPEND sources_${batch} ${source})
    list(APPEND definitions_${batch} ${definitions})
    list(APPEND aliases_${batch} ${aliases})
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${batch})
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  # g++ takes a source that is included by a batch for a header, whose types must not use an anonymous namespace.
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
endfunction()
