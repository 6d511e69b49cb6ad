# One program for each bench/*.cc, named after its file. What compares against another library
# lives there as a script or is left out where that library is missing.
file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/bench/*.cc)
foreach(source IN LISTS sources)
  get_filename_component(name ${source} NAME_WE)
  add_executable(${name} ${source})
  target_link_libraries(${name} PRIVATE stagelink_cli)
endforeach()
