/* A driver that serves CUDA 11.4. */
int cuDriverGetVersion(int* version) {
  *version = 11040;
  return 0;
}
