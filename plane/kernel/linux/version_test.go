package linux

import (
	"testing"

	"github.com/ironvip/ironvip/test/expect"
)

func TestParseVersion(t *testing.T) {
	for in, want := range map[string]Version{
		"6.1.0-56-cloud-amd64": {6, 1}, "5.10.0": {5, 10}, "4.19": {4, 19}, "6.18.44-fc": {6, 18}, "": {}, "x.y": {}, "7": {7, 0}, "5.4-rc1": {5, 4},
	} {
		expect.Equal(t, ParseVersion(in), want, "%q", in)
	}
}
