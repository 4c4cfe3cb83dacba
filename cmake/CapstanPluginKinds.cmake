# CAPSTAN_PLUGIN_KINDS: the kinds of plugins, by the table that the registry is compiled with. CAPSTAN_PLUGIN_ABI: the
# version of the plugin ABI, by its header. The installed SDK has a file of this name with the values themselves.
get_filename_component(_table ${CMAKE_CURRENT_LIST_DIR}/../core/registry/plugin_kind.cpp ABSOLUTE)
file(STRINGS ${_table} CAPSTAN_PLUGIN_KINDS REGEX "^    {[.]name = \"")
list(TRANSFORM CAPSTAN_PLUGIN_KINDS REPLACE "^    {[.]name = \"([a-z]+)\".*" "\\1")

get_filename_component(_header ${CMAKE_CURRENT_LIST_DIR}/../sdk/include/capstan/plugin.h ABSOLUTE)
file(STRINGS ${_header} CAPSTAN_PLUGIN_ABI REGEX "^#define CAPSTAN_ABI_(MAJOR|MINOR) ")
list(TRANSFORM CAPSTAN_PLUGIN_ABI REPLACE ".* ([0-9]+)u .*" "\\1")
list(JOIN CAPSTAN_PLUGIN_ABI "." CAPSTAN_PLUGIN_ABI)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${_table} ${_header})
