//go:build vm

package announce

import "github.com/ironvip/ironvip/test/wait"

// dataplane is the mode of the hosts.
const dataplane = "ipvs"

const perSecond = 100 // requests of the benchmarks: the emulated processor has no room for more

var benchPatience = wait.Reply // it is busy when processes start
