package pipeline

import (
	"testing"
	"testing/synctest"

	"github.com/ironvip/ironvip/test/bubble"
)

// inLateWorld runs a scenario in a world whose inputs are not ready until their
// functions are called.
func inLateWorld(t *testing.T, scenario func(t *testing.T, w *world, services, host, states func())) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		services, host, states := w.Services.Initializer(), w.Host.Initializer(), w.Overrides.Initializer()
		w.run()
		synctest.Wait()
		scenario(t, w, services, host, states)
		w.stop()
	})
}
