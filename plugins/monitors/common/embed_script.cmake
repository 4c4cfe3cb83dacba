# capstan_embed_script(target out part...): a header `out` with the parts, joined, as the string kScript.
function(capstan_embed_script target out)
  set(script "")
  foreach(part IN LISTS ARGN)
    get_filename_component(part ${part} ABSOLUTE)
    file(READ ${part} text)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${part})
    string(APPEND script "${text}\n")
  endforeach()
  file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/${out}
    CONTENT "#pragma once\n\ninline constexpr char kScript[] = R\"SCRIPT(@script@)SCRIPT\";\n" @ONLY)
  target_include_directories(${target} PRIVATE ${CMAKE_CURRENT_BINARY_DIR})
endfunction()
