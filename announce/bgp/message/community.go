package message

import (
	"fmt"
	"strconv"
	"strings"
)

// Community is a community of RFC 1997.
type Community uint32

// GracefulShutdown asks routers to prefer other paths (RFC 8326).
const GracefulShutdown Community = 0xffff0000

var wellKnown = map[string]Community{"graceful-shutdown": GracefulShutdown, "no-export": 0xffffff01, "no-advertise": 0xffffff02,
	"no-export-subconfed": 0xffffff03, "no-peer": 0xffffff04, "blackhole": 0xffff029a}

// ParseCommunity reads "65010:100", or a name of the registry such as "no-export".
func ParseCommunity(s string) (Community, error) {
	if c, ok := wellKnown[s]; ok {
		return c, nil
	}
	high, low, ok := strings.Cut(s, ":")
	h, err1 := strconv.ParseUint(high, 10, 16)
	l, err2 := strconv.ParseUint(low, 10, 16)
	if !ok || err1 != nil || err2 != nil {
		return 0, fmt.Errorf("invalid community %q: must be two numbers of at most 65535, such as 65010:100", s)
	}
	return Community(h<<16 | l), nil
}

func (c Community) String() string { return fmt.Sprintf("%d:%d", c>>16, c&0xffff) }
