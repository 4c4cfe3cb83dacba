// Not compiled: an example of what the check of a build names.
at::Tensor beside(const at::Tensor& other) {
  const at::Tensor fine = at::empty({1}, other.options());
  return fine.add(at::zeros({other.numel()},
                            at::kFloat));
}
