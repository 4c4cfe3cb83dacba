# Plugins for the emulated device (sdk/emulated): built everywhere, in a folder that no search finds by itself.
set(CAPSTAN_EMULATED_FOLDER lib/capstan/emulated)

# capstan_put_with_emulated_device(<target>): the plugin goes into that folder, here and where it is installed.
function(capstan_put_with_emulated_device target)
  set_target_properties(${target} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/${CAPSTAN_EMULATED_FOLDER})
  # scripts/train builds none of them.
  install(TARGETS ${target} LIBRARY DESTINATION ${CAPSTAN_EMULATED_FOLDER} OPTIONAL)
endfunction()

# capstan_device_manifest(<output> <plugin.toml> <device>): a manifest of the same components for another device, in a plugin of
# another name.
function(capstan_device_manifest output file device)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${file})
  file(READ ${file} text)
  string(REGEX REPLACE "\nname = \"(capstan-[a-z-]+)\"" "\nname = \"\\1-${device}\"" text "${text}")
  string(REGEX REPLACE "\ndevice = \"[a-z]+\"" "" text "${text}")
  string(REPLACE "[[components]]\n" "[[components]]\ndevice = \"${device}\"\n" text "${text}")
  string(REPLACE "\"cpu\"]" "\"cuda\"]" text "${text}")
  file(CONFIGURE OUTPUT ${output} CONTENT "${text}" @ONLY)
endfunction()
