/* Loaded first, it shows a machine's processes a GPU that is not there. */
int cudaGetDeviceCount(int* devices) {
  *devices = 1;
  return 0;
}
