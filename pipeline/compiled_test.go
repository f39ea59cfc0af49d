package pipeline

import (
	"reflect"
	"testing"

	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
	"github.com/ironvip/ironvip/vip"
)

func TestSameCompiledSeesEveryField(t *testing.T) {
	compiled := &vip.Service{}
	example := func() Compiled {
		return Compiled{Service: compiled, HealthPort: 1, LocalReady: 1, NotHere: true, ServiceRev: 1, Frontends: make([]*FrontendRow, 1), Problems: make([]vip.Problem, 1)}
	}
	expect.True(t, SameCompiled(example(), example()), "not the same as itself")
	for f := range reflect.TypeFor[Compiled]().Fields() {
		changed := example()
		v := reflect.ValueOf(&changed).Elem().FieldByIndex(f.Index)
		must.False(t, v.IsZero(), "the example leaves %s zero", f.Name)
		v.SetZero()
		expect.False(t, SameCompiled(example(), changed), "a change of %s goes unnoticed", f.Name)
	}
}
