# CAPSTAN_PLUGIN_KINDS: the kinds of plugins, by the table that the registry is compiled with. The installed SDK has a file
# of this name with the list itself.
set(_table ${CMAKE_CURRENT_LIST_DIR}/../core/registry/plugin_kind.cpp)
file(STRINGS ${_table} CAPSTAN_PLUGIN_KINDS REGEX "^    {[.]name = \"")
list(TRANSFORM CAPSTAN_PLUGIN_KINDS REPLACE "^    {[.]name = \"([a-z]+)\".*" "\\1")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${_table})
