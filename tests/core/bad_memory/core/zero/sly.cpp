// Not compiled: an example of what the check of a build names.
at::Tensor beside(const at::Tensor& other) {
  const at::Tensor fine = at::empty({1}, other.options());
  return fine.add(at::zeros({other.size(0), other.size(1), other.size(2), other.size(3), other.size(4), other.size(5)},
                            at::kFloat));
}
