package fleet

// refused checks that a view shows nothing that an answer reported as refused.
func (c *checker) refused(v View) {
	for service, got := range v.Services {
		if o, is := c.of[got.Value]; is && o.Outcome == Refused {
			c.bad("%s shows service %s as it was refused: %s", v.Agent, service, o)
		}
	}
}

// showings are the values of each service that each agent has shown.
type showings map[showing]*sequence

// sequence is a service's values: the last one shown, and the earlier ones.
type sequence struct {
	last   int
	before map[int]bool
}

type showing struct {
	agent   Run
	service string
}

// back checks that a view doesn't show a registration again that its agent has shown as replaced.
// Views must be passed in order of time.
func (c *checker) back(shown showings, v View) {
	for service := range c.ops {
		got, of := v.Services[service].Value, showing{v.Agent, service}
		is := shown[of]
		if is == nil {
			is = &sequence{before: map[int]bool{}}
			shown[of] = is
		}
		if got == is.last {
			continue
		}
		if got > 0 && is.before[got] {
			c.bad("%s shows service %s again %s at %s, after it was %s", v.Agent, service, value(got), at(v.From), value(is.last))
		}
		is.before[is.last] = true
		is.last = got
	}
}
