// What torch needs to dispatch tensors without storage as CUDA's in a build for CPUs: a device that is there and does nothing.
#include <ATen/core/Tensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/transformers/attention.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace at {

struct CUDAHooks : CUDAHooksInterface {
  explicit CUDAHooks(CUDAHooksArgs) {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  DeviceIndex deviceCount() const override { return 1; }
  DeviceIndex getCurrentDevice() const override { return 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
};
REGISTER_CUDA_HOOKS(CUDAHooks);

struct Guard final : c10::impl::NoOpDeviceGuardImpl<kCUDA> {
  Device getDevice() const override { return Device(kCUDA, 0); }
  Device exchangeDevice(Device) const override { return getDevice(); }
  Stream getStream(Device) const noexcept override { return Stream(Stream::DEFAULT, Device(kCUDA, 0)); }
  Stream exchangeStream(Stream stream) const noexcept override { return stream; }
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard);

// The choice itself (sdp_utils.cpp) is compiled in builds with CUDA only: 1 flash, 2 memory-efficient, 0 plain products.
static int64_t choose(const Tensor& query, const Tensor& key, const Tensor& value, const std::optional<Tensor>& mask, double, bool, std::optional<double>, bool grouped) {
  const bool half = query.scalar_type() == kHalf || query.scalar_type() == kBFloat16;
  const auto width = query.sym_size(-1);
  if (half && !mask && width == value.sym_size(-1) && width <= 256) return 1;
  return grouped && query.sym_size(-3) != key.sym_size(-3) ? 0 : 2;
}

static const bool chosen = [] {
  native::_fused_sdp_choice_stub.set_cuda_dispatch_ptr(&choose);
  return true;
}();

} // namespace at
