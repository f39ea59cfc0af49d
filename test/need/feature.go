package need

import (
	"testing"

	"github.com/ironvip/ironvip/plane/kernel/linux"
)

// ReasonKernelFeature means that the kernel is too old for what the test shows.
const ReasonKernelFeature Reason = "needs a kernel feature"

// KernelFeature skips the test if the kernel lacks the feature, because it is older than the first
// Linux that has it. A newer kernel must have it: without it, IRONVIP_CI=1 fails the test.
func KernelFeature(t testing.TB, f linux.Feature, present bool) {
	t.Helper()
	release := linux.Release()
	detail := f.Name + ", which Linux " + f.First() + " and later have; this is " + release
	switch {
	case present:
	case f.In(release):
		Lack(t, ReasonKernelFeature, detail)
	default:
		t.Skipf("%s: %s", ReasonKernelFeature, detail)
	}
}
