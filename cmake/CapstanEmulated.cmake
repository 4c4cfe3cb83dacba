# Plugins for the emulated device (sdk/emulated): built everywhere, in a folder that no search finds by itself.
set(CAPSTAN_EMULATED_FOLDER lib/capstan/emulated)

# capstan_put_with_emulated_device(<target>): the plugin goes into that folder, here and where it is installed.
function(capstan_put_with_emulated_device target)
  set_target_properties(${target} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/${CAPSTAN_EMULATED_FOLDER})
  # scripts/train builds none of them.
  install(TARGETS ${target} LIBRARY DESTINATION ${CAPSTAN_EMULATED_FOLDER} OPTIONAL)
endfunction()
