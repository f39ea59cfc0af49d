//go:build vm && long

package program

import (
	"testing"

	"github.com/ironvip/ironvip/test/seed"
)

func TestImportAgreesWithKeepalivedForLong(t *testing.T) { agrees(t, seed.Of(t), 20) }
