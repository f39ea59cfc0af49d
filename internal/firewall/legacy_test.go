package firewall

import (
	"encoding/binary"
	"testing"
)

// legacyRule is a rule with conditions of some size.
func legacyRule(f legacyFamily, conditions int, target string, verdict int32) []byte {
	at := f.sizeOfRuleStart + conditions
	b := make([]byte, at+targetSize+8)
	binary.NativeEndian.PutUint16(b[f.targetOffset:], uint16(at))
	binary.NativeEndian.PutUint16(b[f.targetOffset+2:], uint16(len(b)))
	copy(b[at+2:], target)
	binary.NativeEndian.PutUint32(b[at+targetSize:], uint32(verdict))
	return b
}

// Rules and policies that drop or reject are counted, whatever their conditions; rules of other forms are errors.
func TestCountLegacyRules(t *testing.T) {
	for _, f := range legacyFamilies {
		var rules []byte
		for _, r := range [][]byte{
			legacyRule(f, 0, "", -2), legacyRule(f, 48, "", verdictDrop), legacyRule(f, 0, "LOG", verdictDrop),
			legacyRule(f, 96, "REJECT", 0), legacyRule(f, 0, "", 400), legacyRule(f, 0, "", verdictDrop), legacyRule(f, 0, "ERROR", 0),
		} {
			rules = append(rules, r...)
		}
		if n, err := f.count(rules); n != 3 || err != nil {
			t.Errorf("%s: %d, %v", f.command, n, err)
		}
		for _, bad := range [][]byte{rules[:len(rules)-1], make([]byte, 200), rules[:20]} {
			if n, err := f.count(bad); err == nil {
				t.Errorf("%s: %d in a damaged table of %d bytes", f.command, n, len(bad))
			}
		}
	}
}
