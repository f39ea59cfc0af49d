//go:build system || vm

package routers_test

import (
	"testing"

	"github.com/ironvip/ironvip/test/routers"
)

func TestMain(m *testing.M) { routers.Main(m) }
