//go:build vm && long

package program

import (
	"testing"
	"time"
)

func TestMoreWallClockJumps(t *testing.T) {
	wallClockJumps(t, jump{by: time.Hour}, jump{by: -5000 * time.Hour, restart: true})
}
