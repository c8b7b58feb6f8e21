# embed_text(TARGET NAME FILES...): compiles text files into TARGET. Declares, in namespace spillway::embedded,
#   const std::vector<std::pair<std::string, std::string>>& NAME();          // (file name without folder, contents)
#   const std::vector<std::pair<std::string, std::string>>& NAME_sha256();   // (the same, SHA-256 in hexadecimal)
function(embed_text target name)
  set(output ${CMAKE_CURRENT_BINARY_DIR}/embedded_${name}.cpp)
  set(files ${ARGN})
  list(SORT files)
  add_custom_command(
    OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} -DOUTPUT=${output} -DNAME=${name} "-DFILES=${files}"
            -P ${PROJECT_SOURCE_DIR}/cmake/EmbedTextScript.cmake
    DEPENDS ${files} ${PROJECT_SOURCE_DIR}/cmake/EmbedTextScript.cmake
    COMMENT "Embedding ${name}" VERBATIM)
  target_sources(${target} PRIVATE ${output})
endfunction()
