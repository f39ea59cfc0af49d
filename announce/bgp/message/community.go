package message

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Community is a community of RFC 1997.
type Community uint32

// LargeCommunity is a community of RFC 8092: an ASN and two numbers that its operator chooses.
type LargeCommunity [3]uint32

// GracefulShutdown asks routers to prefer other paths (RFC 8326).
const GracefulShutdown = "graceful-shutdown"

// wellKnown has the communities of IANA's registry that a host of VIPs can use, by their names.
var wellKnown = map[string]Community{GracefulShutdown: 0xffff0000, "no-export": 0xffffff01, "no-advertise": 0xffffff02,
	"no-export-subconfed": 0xffffff03, "no-peer": 0xffffff04, "blackhole": 0xffff029a}

// CommunityNames returns the names of communities, sorted.
func CommunityNames() []string { return slices.Sorted(maps.Keys(wellKnown)) }

// AddCommunity adds a community, unless it is there: "65010:100", "4200065010:1:100", or a name such as "no-export".
func (a *PathAttributes) AddCommunity(text string) error {
	if c, ok := wellKnown[text]; ok {
		a.Communities = addTo(a.Communities, c)
		return nil
	}
	var large LargeCommunity
	parts := strings.Split(text, ":")
	bits := 16
	if len(parts) == len(large) {
		bits = 32
	} else if len(parts) != 2 {
		return fmt.Errorf("invalid community %q", text)
	}
	for i, part := range parts {
		n, err := strconv.ParseUint(part, 10, bits)
		if err != nil {
			return fmt.Errorf("invalid community %q: %q is not a number of %d bits", text, part, bits)
		}
		large[i] = uint32(n)
	}
	if bits == 32 {
		a.LargeCommunities = addTo(a.LargeCommunities, large)
	} else {
		a.Communities = addTo(a.Communities, Community(large[0]<<16|large[1]))
	}
	return nil
}

func addTo[C comparable](all []C, c C) []C {
	if slices.Contains(all, c) { // RFC 8092, 3: each one once
		return all
	}
	return append(all, c)
}
